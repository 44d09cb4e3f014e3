"""A desktop of its own behind walls: an X server, a window manager, and a program that has eyes and hands in it."""
