"""The certificate: one page on how far a posterior can be trusted, check by check."""

from torchbayes.certificate.budget import Budget
from torchbayes.certificate.certificate import Certificate, Check
from torchbayes.certificate.certify import certify

__all__ = ["Budget", "Certificate", "Check", "certify"]
