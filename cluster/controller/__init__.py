"""The controller's decisions, as pure functions: an image and a request in, znode operations and new image parts out.

Nothing here waits, writes or draws a random number: chance comes in as a function, and whoever calls carries the
operations out (`broker.controller_service`). Every transaction begins with a check of /controller_epoch, so a broker
that ceased to be the controller without noticing changes nothing (Kafka's KAFKA-6082).
"""
