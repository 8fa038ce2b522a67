"""What people write, and what becomes of it: one package per engine, none imports another."""
