"""What lies in a model's folder (Hugging Face layout): its fingerprint, and the demo model that makes one out of a package."""

from .demo_model import Progress, ensure_demo_model
from .fingerprint import fingerprint

__all__ = ["Progress", "ensure_demo_model", "fingerprint"]
