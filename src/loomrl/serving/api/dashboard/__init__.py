"""The page for people who operate a server: what it shows, where that comes from, and the files a browser gets."""
