"""Work stealing: free ranks run the last small pieces of a step."""
