"""The disk as storage sees it: the FileSystem contract and its implementation on the operating system."""
