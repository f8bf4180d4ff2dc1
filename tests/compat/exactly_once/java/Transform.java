import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Reads a topic and writes its values in capitals to another one, exactly once, as KafkaProducer's documentation says:
 * {@code Transform ADDRESS TRANSACTIONAL_ID}. It ends at an error after which a producer cannot go on.
 */
public final class Transform {
    private static final String GROUP = "transform";

    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;

    private Transform(String address, String transactionalId) {
        StringDeserializer in = new StringDeserializer();
        consumer = new KafkaConsumer<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, address,
            ConsumerConfig.GROUP_ID_CONFIG, GROUP,
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false,
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 50,
            ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6_000,
            ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1_000,
            ConsumerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, 100), in, in);
        StringSerializer out = new StringSerializer();
        producer = new KafkaProducer<>(Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, address,
            ProducerConfig.TRANSACTIONAL_ID_CONFIG, transactionalId,
            ProducerConfig.RECONNECT_BACKOFF_MAX_MS_CONFIG, 100), out, out);
    }

    public static void main(String[] arguments) {
        new Transform(arguments[0], arguments[1]).run();
    }

    private void run() {
        producer.initTransactions();
        consumer.subscribe(List.of("input"));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) {
                continue;
            }
            try {
                transform(records);
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException
                | UnsupportedVersionException | InterruptException fatal) {
                throw fatal;
            } catch (CommitFailedException lostPartitions) {
                System.err.println("another member has these partitions: " + lostPartitions);
                producer.abortTransaction();
                rewind();
            } catch (KafkaException exception) {
                exception.printStackTrace();
                producer.abortTransaction();
                rewind();
            }
        }
    }

    private void transform(ConsumerRecords<String, String> records) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>("output", record.partition(), record.key(), record.value().toUpperCase()));
            offsets.put(
                new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
    }

    /** What the aborted transaction had read is read again. */
    private void rewind() {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
        for (TopicPartition partition : assigned) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset);
            }
        }
    }
}
