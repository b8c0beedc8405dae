"""From noise and a caption to a video, with a trained model."""
