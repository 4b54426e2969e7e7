"""Shipped with the package: what proves that something built on velostream holds."""
