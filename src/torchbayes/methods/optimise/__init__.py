"""Methods that descend: MAP, SWA and SWAG, with optimisers and what a descent is worth."""
