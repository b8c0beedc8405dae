"""H.264 in smart cuts (ITU-T H.264, ISO/IEC 14496-15)."""
