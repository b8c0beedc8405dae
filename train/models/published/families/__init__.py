"""Published families of diffusers: a module for each, registered in `registry`."""
