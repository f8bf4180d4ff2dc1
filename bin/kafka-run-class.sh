#!/bin/sh
# kafka-run-class.sh CLASS ARGS...: the tool that Kafka keeps in that class, for scripts that name it so.
case ${1:-} in
  org.apache.kafka.tools.TopicCommand | kafka.admin.TopicCommand) tool=topics ;;
  kafka.tools.ConsoleProducer | org.apache.kafka.tools.ConsoleProducer) tool=console-producer ;;
  org.apache.kafka.tools.consumer.ConsoleConsumer | kafka.tools.ConsoleConsumer) tool=console-consumer ;;
  org.apache.kafka.tools.consumer.group.ConsumerGroupCommand | kafka.admin.ConsumerGroupCommand) tool=consumer-groups ;;
  kafka.admin.ConfigCommand | org.apache.kafka.tools.ConfigCommand) tool=configs ;;
  org.apache.kafka.tools.GetOffsetShell | kafka.tools.GetOffsetShell) tool=get-offsets ;;
  org.apache.kafka.tools.DeleteRecordsCommand | kafka.admin.DeleteRecordsCommand) tool=delete-records ;;
  org.apache.kafka.tools.LogDirsCommand | kafka.admin.LogDirsCommand) tool=log-dirs ;;
  kafka.admin.BrokerApiVersionsCommand) tool=broker-api-versions ;;
  org.apache.kafka.tools.ProducerPerformance) tool=producer-perf-test ;;
  org.apache.kafka.tools.ConsumerPerformance | kafka.tools.ConsumerPerformance) tool=consumer-perf-test ;;
  org.apache.kafka.tools.VerifiableProducer) tool=verifiable-producer ;;
  org.apache.kafka.tools.VerifiableConsumer) tool=verifiable-consumer ;;
  kafka.tools.DumpLogSegments | org.apache.kafka.tools.DumpLogSegments) tool=dump-log ;;
  org.apache.kafka.tools.ClusterTool | kafka.tools.ClusterTool) tool=cluster ;;
  org.apache.kafka.tools.EndToEndLatency | kafka.tools.EndToEndLatency) tool=e2e-latency ;;
  org.apache.kafka.tools.TransactionsCommand) tool=transactions ;;
  kafka.Kafka) tool=server-start ;;
  '')
    echo "USAGE: $0 classname [opts]" >&2
    exit 1
    ;;
  *)
    echo "$0: there is no tool for the class $1" >&2
    exit 1
    ;;
esac
shift
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" "$tool" "$@"
