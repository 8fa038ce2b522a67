"""OffloadPolicy and pod webhooks: which namespace may use which cloud, at which price."""
