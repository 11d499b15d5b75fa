"""What an experiment needs and a product does not."""
