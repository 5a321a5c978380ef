"""What the product says about itself: events, metrics, notifications."""
