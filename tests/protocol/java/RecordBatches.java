import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Utils;

/**
 * Writes record batches with Kafka's own classes and reads them. Each line of the input is a JSON object: with `read`
 * (bytes in base64) the answer is what the batch says, as JSON; otherwise it describes a batch, and the answer is its
 * bytes in base64. With `filter` (bytes in base64) the answer is what compaction leaves of the batches, in base64. A failure is answered by `!` and what went wrong.
 */
public class RecordBatches {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode task = MAPPER.readTree(line);
            try {
                if (task.has("filter")) {
                    out.println(filter(task));
                } else {
                    out.println(task.has("read") ? read(bytes(task.get("read"))) : write(task));
                }
            } catch (RuntimeException error) {
                out.println("!" + error);
            }
        }
        out.flush();
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String write(JsonNode task) {
        long producerId = task.get("producer_id").asLong();
        short producerEpoch = (short) task.get("producer_epoch").asInt();
        int leaderEpoch = task.get("partition_leader_epoch").asInt();
        long baseOffset = task.get("base_offset").asLong();
        MemoryRecords records;
        if (task.has("marker")) {
            EndTransactionMarker marker = new EndTransactionMarker(
                ControlRecordType.fromTypeId((short) task.get("marker").asInt()), task.get("coordinator_epoch").asInt());
            records = MemoryRecords.withEndTransactionMarker(
                baseOffset, task.get("timestamp").asLong(), leaderEpoch, producerId, producerEpoch, marker);
        } else {
            JsonNode appendTime = task.get("log_append_time_ms");
            MemoryRecordsBuilder builder = MemoryRecords.builder(
                ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2,
                Compression.of(CompressionType.forId(task.get("compression").asInt())).build(),
                appendTime.isNull() ? TimestampType.CREATE_TIME : TimestampType.LOG_APPEND_TIME,
                baseOffset, appendTime.isNull() ? RecordBatch.NO_TIMESTAMP : appendTime.asLong(),
                producerId, producerEpoch, task.get("base_sequence").asInt(),
                task.get("is_transactional").asBoolean(), false, leaderEpoch);
            long offset = baseOffset;
            for (JsonNode record : task.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.get("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                builder.appendWithOffset(offset++, record.get("timestamp").asLong(), bytes(record.get("key")),
                    bytes(record.get("value")), headers.toArray(new Header[0]));
            }
            records = builder.build();
        }
        return Base64.getEncoder().encodeToString(Utils.toArray(records.buffer()));
    }

    private static String filter(JsonNode task) {
        Map<ByteBuffer, Long> latest = new HashMap<>();
        for (JsonNode entry : task.get("latest")) {
            latest.put(ByteBuffer.wrap(bytes(entry.get(0))), entry.get(1).asLong());
        }
        long mapEnd = task.get("map_end_offset").asLong();
        boolean discard = task.get("discard").asBoolean();
        boolean keepEmpty = task.get("keep_empty").asBoolean();
        boolean endsEmpty = task.get("ends_empty_transaction").asBoolean();
        long now = task.get("now_ms").asLong();
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(now, task.get("delete_retention_ms").asLong()) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(
                    keepEmpty ? BatchRetention.RETAIN_EMPTY : discard ? BatchRetention.DELETE : BatchRetention.DELETE_EMPTY,
                    endsEmpty);
            }

            /** As Kafka's Cleaner, whose own method is not to be called without a log. */
            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                if (discard || batch.isControlBatch() || record.offset() >= mapEnd) {
                    return !discard;
                }
                boolean keepsDeletes = !batch.deleteHorizonMs().isPresent() || now < batch.deleteHorizonMs().getAsLong();
                return record.hasKey() && record.offset() >= latest.getOrDefault(record.key(), -1L)
                    && (record.hasValue() || keepsDeletes);
            }
        };
        ByteBuffer out = ByteBuffer.allocate(1 << 20);
        MemoryRecords.FilterResult result = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(task.get("filter"))))
            .filterTo(new TopicPartition("t", 0), filter, out, Integer.MAX_VALUE, BufferSupplier.NO_CACHING);
        ByteBuffer filtered = result.outputBuffer();
        filtered.flip();
        return Base64.getEncoder().encodeToString(Utils.toArray(filtered));
    }

    private static JsonNode read(byte[] data) {
        ObjectNode answer = MAPPER.createObjectNode();
        ArrayNode rows = answer.putArray("records");
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            answer.put("base_offset", batch.baseOffset()).put("last_offset", batch.lastOffset())
                .put("partition_leader_epoch", batch.partitionLeaderEpoch()).put("count", batch.countOrNull())
                .put("max_timestamp", batch.maxTimestamp()).put("timestamp_type", batch.timestampType().id)
                .put("producer_id", batch.producerId()).put("producer_epoch", batch.producerEpoch())
                .put("base_sequence", batch.baseSequence()).put("last_sequence", batch.lastSequence())
                .put("is_transactional", batch.isTransactional()).put("is_control", batch.isControlBatch())
                .put("compression", batch.compressionType().id).put("size_in_bytes", batch.sizeInBytes())
                .put("offset_of_max_timestamp", batch.offsetOfMaxTimestamp().orElse(null));
            for (Record record : batch) {
                ArrayNode row = rows.addArray().add(record.offset()).add(record.timestamp());
                row.add(record.hasKey() ? Utils.toArray(record.key()) : null);
                row.add(record.hasValue() ? Utils.toArray(record.value()) : null);
                ArrayNode headers = row.addArray();
                for (Header header : record.headers()) {
                    headers.addArray().add(header.key()).add(header.value());
                }
            }
        }
        return answer;
    }
}
