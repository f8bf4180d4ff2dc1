import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/** Kafka Streams with exactly_once_v2: {@code Streams word-count|windowed-join ADDRESS DIRECTORY}. */
public final class Streams {
    private static final Duration WINDOW = Duration.ofSeconds(5);
    /** No record is too late: which pairs there are depends on the timestamps alone. */
    private static final Duration GRACE = Duration.ofDays(1);

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        switch (arguments[0]) {
            case "word-count" -> countWords(builder);
            case "windowed-join" -> joinWindows(builder);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments[0], arguments[1], arguments[2]));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    /** Every occurrence of a word gives a record with its count until then. */
    private static void countWords(StreamsBuilder builder) {
        builder.<String, String>stream("lines")
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .mapValues(count -> count.toString())
            .to("output");
    }

    /** Every order and payment of a customer that are at most five seconds apart give a record. */
    private static void joinWindows(StreamsBuilder builder) {
        KStream<String, String> payments = builder.stream("payments");
        builder.<String, String>stream("orders")
            .join(payments, (order, payment) -> order + " " + payment, JoinWindows.ofTimeDifferenceAndGrace(WINDOW, GRACE))
            .to("output");
    }

    private static Properties settings(String application, String address, String directory) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Without a cache every record that comes in gives one that goes out.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // A dead instance is replaced within seconds, and a broker that is back is found at once.
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 1_000);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 5_000);
        settings.put(StreamsConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, 100);
        // Changelogs are compacted, and what was read of repartition topics is deleted, while the application runs.
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1_000);
        settings.put(StreamsConfig.topicPrefix(TopicConfig.SEGMENT_BYTES_CONFIG), 100_000);
        settings.put(StreamsConfig.topicPrefix(TopicConfig.MIN_CLEANABLE_DIRTY_RATIO_CONFIG), "0.01");
        return settings;
    }
}
