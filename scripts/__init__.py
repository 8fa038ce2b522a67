"""What developers run from the root of the checkout, as `python -m scripts.<name>`. Nothing of it is shipped."""
