"""What a producer imports."""
