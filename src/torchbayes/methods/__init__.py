"""How to infer: one file per method, by family. They are listed in `torchbayes.catalogue.methods`."""
