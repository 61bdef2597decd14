"""What people see: the operator API and its pages, and the command line. Holds no logic of the node."""
