"""What a run costs, and what it takes over of earlier ones."""
