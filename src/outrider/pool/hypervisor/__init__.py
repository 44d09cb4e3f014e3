"""Virtual machines of a product that is driven by its command line."""
