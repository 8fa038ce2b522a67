"""Custom resources and their controllers: one package per engine. No engine imports another."""
