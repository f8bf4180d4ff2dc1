import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/**
 * Encodes messages with Kafka's generated classes. Each line of the input is a JSON object with `message`, `read` (the
 * version whose fields `value` has), `write` (the version to encode) and `value`; each line of the output is the bytes
 * in base64, or `!` and what went wrong.
 */
public class MessageCodec {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
    };
    private static final Map<String, Method> READERS = new HashMap<>();
    private static final Map<String, Constructor<?>> DECODERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(mapper.readTree(line)));
        }
        out.flush();
    }

    private static String answer(JsonNode task) throws Exception {
        String name = task.get("message").asText();
        short write = (short) task.get("write").asInt();
        try {
            Object value = reader(name).invoke(null, task.get("value"), (short) task.get("read").asInt());
            Message message = (Message) value;
            ByteBuffer buffer = MessageUtil.toByteBuffer(message, write);
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            if (task.get("read").asInt() == write) {
                Object decoded = DECODERS.get(name).newInstance(new ByteBufferAccessor(buffer), write);
                if (!decoded.equals(message) || buffer.hasRemaining()) {
                    return "!does not decode to itself";
                }
            }
            return Base64.getEncoder().encodeToString(bytes);
        } catch (InvocationTargetException error) {
            return "!" + error.getCause();
        } catch (UnsupportedVersionException error) {
            return "!unsupported " + error.getMessage();
        } catch (RuntimeException error) {
            return "!" + error;
        }
    }

    private static Method reader(String name) throws Exception {
        Method known = READERS.get(name);
        if (known != null) {
            return known;
        }
        for (String packageName : PACKAGES) {
            for (String suffix : new String[] {"DataJsonConverter", "JsonConverter"}) {
                try {
                    Class<?> converter = Class.forName(packageName + name + suffix);
                    Method read = converter.getMethod("read", JsonNode.class, short.class);
                    READERS.put(name, read);
                    DECODERS.put(name, read.getReturnType().getConstructor(Readable.class, short.class));
                    return read;
                } catch (ClassNotFoundException elsewhere) {
                    continue;
                }
            }
        }
        throw new IllegalArgumentException("Kafka has no message " + name);
    }
}
