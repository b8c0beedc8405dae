"""Extensions by which inputs and the files in folders are told apart; all in small letters."""

# fmt: off
VIDEO_SUFFIXES = frozenset((
    ".264", ".265", ".3g2", ".3gp", ".apng", ".asf", ".avi", ".divx", ".dv", ".f4v", ".flv", ".gif", ".h264", ".h265",
    ".hevc", ".ivf", ".m1v", ".m2t", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mts",
    ".mxf", ".ogm", ".ogv", ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m",
))
# fmt: on
LIST_SUFFIXES = frozenset((".txt", ".csv", ".json", ".jsonl", ".parquet"))
SIDECAR_SUFFIXES = frozenset((".json", ".txt"))
ID_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov")
"""Endings of files that are named by the ID of a film."""
