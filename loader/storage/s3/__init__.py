"""S3: client, faults in words, the storage."""
