"""Files of other tools: names of weights and adapters in original repositories, in and out."""
