"""What all rooms stand on: files, the home folder, documents, processes, HTTP, security."""
