"""Methods by gradient descent: MAP, SWA and SWAG, with optimisers and checks of their results."""
