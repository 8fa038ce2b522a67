"""Paid things at a cloud, each with a claim that was written before the cloud was called."""
