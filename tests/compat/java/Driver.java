import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's Java client as a driver: the commands of drivers/base.py, one JSON line each, on standard input.
 * Compiles against every client from 3.9 on.
 */
public final class Driver {
    /** Less than a test waits for an answer, so that it is told what did not come. */
    private static final int PATIENCE_S = 50;
    private static final int STREAM_WINDOW = 1000;
    private static final Map<String, String> STRATEGIES = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private final String address;
    private final Admin admin;
    private final Map<String, Member> members = new HashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private Stream stream;
    private Follower follower;

    private Driver(String address) {
        this.address = address;
        this.admin = Admin.create(Map.of(
            "bootstrap.servers", address,
            "request.timeout.ms", PATIENCE_S * 1000,
            "default.api.timeout.ms", PATIENCE_S * 1000));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver(arguments[0]);
        ObjectMapper json = new ObjectMapper();
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            Arguments question = new Arguments(json.readValue(line, new TypeReference<Map<String, Object>>() { }));
            answers.println(json.writeValueAsString(driver.answer(question)));
        }
        System.exit(0);
    }

    private Map<String, Object> answer(Arguments question) {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("ok", obey(question));
        } catch (Exception exception) {
            exception.printStackTrace();
            Throwable cause = exception instanceof ExecutionException ? exception.getCause() : exception;
            Map<String, Object> error = new HashMap<>();
            error.put("code", code(cause));
            error.put("type", cause.getClass().getSimpleName());
            error.put("text", String.valueOf(cause.getMessage()));
            answer.put("error", error);
        }
        return answer;
    }

    /** A fatal error comes wrapped in the exception of the call that met it. */
    private static Integer code(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ApiException) {
                return (int) Errors.forException(cause).code();
            }
        }
        return null;
    }

    private Object obey(Arguments question) throws Exception {
        return switch (question.text("do")) {
            case "produce" -> produce(question);
            case "consume" -> consume(question);
            case "begin" -> begin(question.text("transactional_id"));
            case "write" -> write(question);
            case "send_offset" -> sendOffset(question);
            case "end" -> end(question);
            case "join" -> join(question);
            case "state" -> members.get(question.text("member")).state();
            case "commit" -> members.get(question.text("member")).request("commit");
            case "leave" -> members.remove(question.text("member")).request("leave");
            case "stream" -> stream(question.text("topic"), question.number("rate"));
            case "stream_state" -> stream.state(question.flag("stop"));
            case "follow" -> follow(question.text("topic"));
            case "follow_state" -> follower.state();
            case "admin" -> administer(question);
            default -> throw new IllegalArgumentException(question.text("do"));
        };
    }

    // -- records ------------------------------------------------------------------------------------------------------

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", address);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", address);
        all.put("enable.auto.commit", false);
        all.put("request.timeout.ms", PATIENCE_S * 1000);
        all.put("default.api.timeout.ms", PATIENCE_S * 1000);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Object produce(Arguments question) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of(
                "compression.type", question.text("codec"),
                "acks", question.text("acks"),
                "enable.idempotence", question.text("acks").equals("all"),
                "linger.ms", 20,
                "max.request.size", 4_000_000))) {
            for (Arguments each : question.list("records")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    question.text("topic"),
                    each.number("partition").intValue(),
                    each.number("timestamp").longValue(),
                    bytes(each.text("key")),
                    bytes(each.text("value")));
                for (Object header : (List<?>) each.get("headers")) {
                    List<?> pair = (List<?>) header;
                    record.headers().add((String) pair.get(0), bytes((String) pair.get(1)));
                }
                futures.add(producer.send(record));
            }
            producer.flush();
        }
        List<List<Long>> answers = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            RecordMetadata metadata = future.get(PATIENCE_S, TimeUnit.SECONDS);
            answers.add(List.of((long) metadata.partition(), metadata.hasOffset() ? metadata.offset() : -1L));
        }
        return answers;
    }

    private Object consume(Arguments question) {
        TopicPartition target = new TopicPartition(question.text("topic"), question.number("partition").intValue());
        int count = question.number("count").intValue();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(
                Map.of("max.partition.fetch.bytes", 4_000_000, "max.poll.records", Math.max(1, count)))) {
            consumer.assign(List.of(target));
            switch (String.valueOf(question.get("at"))) {
                case "earliest" -> consumer.seekToBeginning(List.of(target));
                case "latest" -> consumer.seekToEnd(List.of(target));
                case "timestamp" -> {
                    long timestamp = question.number("timestamp").longValue();
                    var found = consumer.offsetsForTimes(Map.of(target, timestamp)).get(target);
                    long end = consumer.endOffsets(List.of(target)).get(target);
                    consumer.seek(target, found == null ? end : found.offset());
                }
                default -> consumer.seek(target, question.number("at").longValue());
            }
            long position = consumer.position(target);
            List<Object> records = new ArrayList<>();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (records.size() < count) {
                        records.add(plain(record));
                    }
                }
            }
            if (records.size() < count) {
                throw new IllegalStateException("only " + records.size() + " of " + count + " records came");
            }
            return Map.of("position", position, "records", records);
        }
    }

    private static Object plain(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        Map<String, Object> plain = new HashMap<>();
        plain.put("partition", record.partition());
        plain.put("offset", record.offset());
        plain.put("timestamp", record.timestamp());
        plain.put("key", text(record.key()));
        plain.put("value", text(record.value()));
        plain.put("headers", headers);
        return plain;
    }

    // -- transactions -------------------------------------------------------------------------------------------------

    private Object begin(String transactionalId) {
        KafkaProducer<byte[], byte[]> producer = producer(Map.of("transactional.id", transactionalId));
        producer.initTransactions();
        producer.beginTransaction();
        producers.put(transactionalId, producer);
        return null;
    }

    private Object write(Arguments question) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producers.get(question.text("transactional_id"));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (Object value : (List<?>) question.get("values")) {
            byte[] bytes = ((String) value).getBytes(StandardCharsets.UTF_8);
            sent.add(producer.send(new ProducerRecord<>(question.text("topic"), 0, null, bytes)));
        }
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
        return null;
    }

    private Object sendOffset(Arguments question) {
        TopicPartition partition = new TopicPartition(question.text("topic"), 0);
        OffsetAndMetadata offset = new OffsetAndMetadata(question.number("offset").longValue());
        producers.get(question.text("transactional_id")).sendOffsetsToTransaction(
            Map.of(partition, offset), new ConsumerGroupMetadata(question.text("group")));
        return null;
    }

    private Object end(Arguments question) {
        KafkaProducer<byte[], byte[]> producer = producers.get(question.text("transactional_id"));
        if (question.flag("commit")) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
        if (question.flag("again")) {
            producer.beginTransaction();
        }
        return null;
    }

    // -- members of groups --------------------------------------------------------------------------------------------

    private Object join(Arguments question) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("group.id", question.text("group"));
        settings.put("partition.assignment.strategy", STRATEGIES.get(question.text("strategy")));
        settings.put("session.timeout.ms", question.number("session_timeout_ms").intValue());
        settings.put("heartbeat.interval.ms", 500);
        settings.put("auto.offset.reset", "earliest");
        settings.put("metadata.max.age.ms", 1000);
        if (question.text("instance") != null) {
            settings.put("group.instance.id", question.text("instance"));
        }
        Member member = new Member(
            consumer(settings), (List<?>) question.get("topics"), question.text("strategy").equals("cooperative"));
        members.put(question.text("member"), member);
        member.start();
        return null;
    }

    /** A consumer and the only thread that may touch it. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private record Request(String what, CompletableFuture<Object> done) { }

        private final KafkaConsumer<byte[], byte[]> consumer;
        private final List<String> topics = new ArrayList<>();
        private final boolean incremental;
        private final LinkedBlockingQueue<Request> requests = new LinkedBlockingQueue<>();
        private final Set<String> assignment = new TreeSet<>();
        private final List<Object> events = new ArrayList<>();
        private final List<Object> records = new ArrayList<>();
        private String failure;

        Member(KafkaConsumer<byte[], byte[]> consumer, List<?> topics, boolean incremental) {
            this.consumer = consumer;
            this.incremental = incremental;
            topics.forEach(topic -> this.topics.add((String) topic));
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(topics, this);
                while (obey()) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        synchronized (this) {
                            records.add(plain(record));
                        }
                    }
                }
            } catch (RuntimeException exception) {
                exception.printStackTrace();
                synchronized (this) {
                    failure = exception.toString();
                }
            }
        }

        private boolean obey() {
            for (Request request = requests.poll(); request != null; request = requests.poll()) {
                try {
                    if (request.what.equals("commit")) {
                        consumer.commitSync();
                    } else {
                        consumer.close();
                    }
                    request.done.complete(null);
                } catch (KafkaException exception) {
                    request.done.completeExceptionally(exception);
                }
                if (request.what.equals("leave")) {
                    return false;
                }
            }
            return true;
        }

        Object request(String what) throws Exception {
            Request request = new Request(what, new CompletableFuture<>());
            requests.add(request);
            return request.done.get(PATIENCE_S, TimeUnit.SECONDS);
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            if (!incremental) {
                assignment.clear();
            }
            assignment.addAll(names(partitions));
            events.add(List.of("assigned", names(partitions)));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            assignment.removeAll(names(partitions));
            events.add(List.of("revoked", names(partitions)));
        }

        synchronized Object state() {
            Map<String, Object> state = new HashMap<>();
            state.put("assignment", new ArrayList<>(assignment));
            state.put("events", new ArrayList<>(events));
            state.put("records", new ArrayList<>(records));
            state.put("failure", failure);
            return state;
        }
    }

    // -- the stream ---------------------------------------------------------------------------------------------------

    private Object stream(String topic, Number rate) {
        Map<String, Object> settings =
            Map.of("linger.ms", 2, "request.timeout.ms", 10_000, "delivery.timeout.ms", Integer.MAX_VALUE);
        stream = new Stream(producer(settings), topic, rate == null ? 0 : rate.longValue());
        stream.start();
        return null;
    }

    /** Sends the numbers from 0 on, in order, until it is stopped; `rate` a second at most, or for 0 as many as it can.
     *  Java's producers are idempotent by default. */
    private static final class Stream extends Thread {
        private final KafkaProducer<byte[], byte[]> producer;
        private final String topic;
        private final List<Long> acknowledged = new ArrayList<>();
        private final List<String> failures = new ArrayList<>();
        private final long rate;
        private final long beganNanos = System.nanoTime();
        private volatile boolean stopping;
        private long sent;

        Stream(KafkaProducer<byte[], byte[]> producer, String topic, long rate) {
            this.producer = producer;
            this.topic = topic;
            this.rate = rate;
            setDaemon(true);
        }

        @Override
        public void run() {
            while (!stopping) {
                if (isFull()) {
                    LockSupport.parkNanos(1_000_000);
                    continue;
                }
                long number = sent++;
                byte[] value = Long.toString(number).getBytes(StandardCharsets.US_ASCII);
                producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, error) -> done(number, error));
            }
            producer.close(Duration.ofSeconds(PATIENCE_S));
        }

        private synchronized boolean isFull() {
            if (rate > 0 && sent >= rate * ((System.nanoTime() - beganNanos) / 1e9)) {
                return true;
            }
            return sent - acknowledged.size() - failures.size() >= STREAM_WINDOW;
        }

        private synchronized void done(long number, Exception error) {
            if (error == null) {
                acknowledged.add(number);
            } else {
                failures.add(number + ": " + error);
            }
        }

        Object state(boolean stop) throws InterruptedException {
            if (stop) {
                stopping = true;
                join(PATIENCE_S * 1000L);
            }
            synchronized (this) {
                return Map.of(
                    "sent", sent,
                    "acknowledged", stop ? new ArrayList<>(acknowledged) : acknowledged.size(),
                    "failures", new ArrayList<>(failures),
                    "running", isAlive());
            }
        }
    }

    private Object follow(String topic) {
        follower = new Follower(consumer(Map.of()), new TopicPartition(topic, 0));
        follower.start();
        return null;
    }

    /** Reads what a stream has sent, from its begin on: the numbers from 0 on, each at the offset that it is. */
    private static final class Follower extends Thread {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final TopicPartition source;
        private volatile long next;
        private volatile String failure;

        Follower(KafkaConsumer<byte[], byte[]> consumer, TopicPartition source) {
            this.consumer = consumer;
            this.source = source;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer.assign(List.of(source));
                consumer.seekToBeginning(List.of(source));
                while (failure == null) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        String value = new String(record.value(), StandardCharsets.US_ASCII);
                        if (record.offset() != next || !value.equals(Long.toString(next))) {
                            failure = "at offset " + record.offset() + " is " + value + " where " + next + " should be";
                            break;
                        }
                        next++;
                    }
                }
            } catch (RuntimeException exception) {
                exception.printStackTrace();
                failure = exception.toString();
            }
        }

        Object state() {
            Map<String, Object> state = new HashMap<>();
            state.put("next", next);
            state.put("failure", failure);
            return state;
        }
    }

    // -- admin --------------------------------------------------------------------------------------------------------

    private Object administer(Arguments question) throws Exception {
        String topic = question.text("topic");
        String group = question.text("group");
        return switch (question.text("call")) {
            case "create_topic" -> {
                Map<String, String> configs = new HashMap<>();
                ((Map<?, ?>) question.get("configs")).forEach((key, value) -> configs.put((String) key, (String) value));
                int partitions = question.number("partitions").intValue();
                NewTopic created = new NewTopic(topic, partitions, (short) 1).configs(configs);
                yield admin.createTopics(List.of(created)).all().get();
            }
            case "delete_topic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "partitions" -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            case "topics" -> new TreeSet<>(admin.listTopics().names().get());
            case "create_partitions" -> {
                NewPartitions partitions = NewPartitions.increaseTo(question.number("count").intValue());
                yield admin.createPartitions(Map.of(topic, partitions)).all().get();
            }
            case "describe_config" -> {
                Map<String, String> configs = new TreeMap<>();
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                    configs.put(entry.name(), entry.value());
                }
                yield configs;
            }
            case "alter_config" -> {
                ConfigEntry entry = new ConfigEntry(question.text("key"), question.text("value"));
                yield admin.incrementalAlterConfigs(Map.of(
                    new ConfigResource(ConfigResource.Type.TOPIC, topic),
                    List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
            }
            case "groups" ->
                admin.listConsumerGroups().all().get().stream().map(each -> each.groupId()).toList();
            case "describe_group" -> {
                ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                List<Object> assignments = new ArrayList<>();
                for (MemberDescription member : found.members()) {
                    assignments.add(names(member.assignment().topicPartitions()));
                }
                yield Map.of(
                    "state", found.state().toString(),
                    "assignor", found.partitionAssignor(),
                    "members", assignments);
            }
            case "delete_group" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            case "committed" -> {
                Map<String, Long> offsets = new TreeMap<>();
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                    .forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset()));
                yield offsets;
            }
            case "delete_records" -> {
                TopicPartition target = new TopicPartition(topic, question.number("partition").intValue());
                RecordsToDelete before = RecordsToDelete.beforeOffset(question.number("before").longValue());
                yield admin.deleteRecords(Map.of(target, before)).lowWatermarks().get(target).get().lowWatermark();
            }
            case "list_offset" -> {
                TopicPartition target = new TopicPartition(topic, question.number("partition").intValue());
                OffsetSpec specification = switch (question.text("at")) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    case "max_timestamp" -> OffsetSpec.maxTimestamp();
                    default -> OffsetSpec.forTimestamp(question.number("timestamp").longValue());
                };
                yield admin.listOffsets(Map.of(target, specification)).partitionResult(target).get().offset();
            }
            case "describe_cluster" -> {
                var found = admin.describeCluster();
                List<String> brokers = new ArrayList<>();
                for (Node node : found.nodes().get()) {
                    brokers.add(node.host() + ":" + node.port());
                }
                yield Map.of(
                    "cluster_id", found.clusterId().get(),
                    "controller", found.controller().get().id(),
                    "brokers", brokers);
            }
            case "describe_log_dirs" -> {
                Map<String, Long> sizes = new TreeMap<>();
                for (var directories : admin.describeLogDirs(List.of(0)).allDescriptions().get().values()) {
                    for (var directory : directories.values()) {
                        directory.replicaInfos().forEach((partition, replica) -> {
                            if (partition.topic().equals(topic)) {
                                sizes.put(partition.toString(), replica.size());
                            }
                        });
                    }
                }
                yield sizes;
            }
            case "alter_broker_config" -> {
                ConfigEntry entry = new ConfigEntry(question.text("key"), question.text("value"));
                yield admin.incrementalAlterConfigs(Map.of(
                    new ConfigResource(ConfigResource.Type.BROKER, question.text("broker")),
                    List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
            }
            case "alter_replica_log_dir" -> {
                TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 0);
                yield admin.alterReplicaLogDirs(Map.of(replica, question.text("path"))).all().get();
            }
            case "describe_replica_log_dir" -> {
                TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 0);
                var found = admin.describeReplicaLogDirs(List.of(replica)).values().get(replica).get();
                Map<String, Object> places = new HashMap<>();
                places.put("current", found.getCurrentReplicaLogDir());
                places.put("current_lag", found.getCurrentReplicaOffsetLag());
                places.put("future", found.getFutureReplicaLogDir());
                places.put("future_lag", found.getFutureReplicaOffsetLag());
                yield places;
            }
            default -> throw new IllegalArgumentException(question.text("call"));
        };
    }

    // -- JSON ---------------------------------------------------------------------------------------------------------

    private static List<String> names(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    private static byte[] bytes(String text) {
        return text == null ? null : Base64.getDecoder().decode(text);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** A JSON object, read. */
    private record Arguments(Map<String, Object> values) {
        Object get(String name) {
            return values.get(name);
        }

        String text(String name) {
            return (String) values.get(name);
        }

        Number number(String name) {
            return (Number) values.get(name);
        }

        boolean flag(String name) {
            return (Boolean) values.get(name);
        }

        List<Arguments> list(String name) {
            List<Arguments> list = new ArrayList<>();
            for (Object each : (List<?>) values.get(name)) {
                Map<String, Object> object = new HashMap<>();
                ((Map<?, ?>) each).forEach((key, value) -> object.put((String) key, value));
                list.add(new Arguments(object));
            }
            return list;
        }
    }
}
