"""The controller: it holds the cluster's state and carries out the decisions of `cluster.controller`."""
