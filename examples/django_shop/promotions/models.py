"""What the shop keeps."""

from django.db import models


class Promotion(models.Model):
    """A product is cheaper, until a time."""

    product = models.IntegerField(unique=True)
    until = models.DateTimeField()
    ended = models.BooleanField(default=False)

    def __str__(self) -> str:
        """The product."""
        return f"product {self.product}"
