"""The colour detector and the features it decides by."""
