"""Kafka's own Java producer, with its own partitioner and defaults, in a process of its own: `publish_with_java` in tests/foreign.py.

Arguments: the folder of Kafka's jars, libjvm, bootstrap servers, topic. One record a line on standard input: key and value in
hexadecimal, separated by a space. For each it prints the partition and the offset that the broker answered.
"""

from __future__ import annotations

import sys

import jpype


def main(libs: str, libjvm: str, bootstrap_servers: str, topic: str) -> None:
    jpype.startJVM(libjvm, "-Xmx64m", "--enable-native-access=ALL-UNNAMED", classpath=[f"{libs}/*"])
    properties = jpype.JClass("java.util.Properties")()
    properties.setProperty("bootstrap.servers", bootstrap_servers)
    for part in ("key", "value"):
        properties.setProperty(f"{part}.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer")
    producer = jpype.JClass("org.apache.kafka.clients.producer.KafkaProducer")(properties)
    record = jpype.JClass("org.apache.kafka.clients.producer.ProducerRecord")
    sent = []
    for line in sys.stdin:
        key, value = (jpype.JArray(jpype.JByte)(bytes.fromhex(part)) for part in line.rstrip("\n").split(" "))
        sent.append(producer.send(record(topic, key, value)))
    for future in sent:
        metadata = future.get()
        sys.stdout.write(f"{metadata.partition()} {metadata.offset()}\n")
    producer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
