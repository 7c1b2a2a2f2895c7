"""Other libraries on the same work, each in a process and an environment of its own: see setup.sh and client.py."""
