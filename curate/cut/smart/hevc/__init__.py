"""HEVC in smart cuts (ITU-T H.265, ISO/IEC 14496-15)."""
