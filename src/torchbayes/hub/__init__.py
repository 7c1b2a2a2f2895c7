"""Posteriors in folders of the Hugging Face Hub: numbers, a description and a model card.

    tb.hub.save(posterior, "digits-swag", evaluation=tb.evaluate(posterior, test), dataset="digits")
    tb.hub.push("digits-swag", "me/digits-swag")
    posterior = tb.hub.load("me/digits-swag", model)

A folder holds no code, and loading runs none: the network comes from the program that loads.
"""

from torchbayes.hub.folder import load, push, save

__all__ = ["load", "push", "save"]
