"""What the product costs, beside its peers and beside what the hardware allows: `make bench`."""
