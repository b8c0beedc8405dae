"""Resources that the processes of a machine share: locks, files, memory, the space of a disk cache."""
