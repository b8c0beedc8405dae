"""What is trained and what feeds it: the DiT, the video tokenizer, the text encoders."""
