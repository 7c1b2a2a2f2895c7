"""How to infer: one file per method, by family. Which methods there are, `torchbayes.catalogue.methods` knows."""
