"""Facts that only a container states of its pictures: encryption, colours behind a codec, edges cut off."""
