"""Storage's view of the disk: the FileSystem contract and its implementation on the operating system."""
