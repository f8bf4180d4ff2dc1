import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** What stops Kafka's broker from starting: for each JSON object of properties, a line with the message, or null. */
public final class ConfigErrors {
    private ConfigErrors() { }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Properties properties = new Properties();
            properties.putAll(json.readValue(line, new TypeReference<Map<String, String>>() { }));
            properties.put("zookeeper.connect", "127.0.0.1:2181");
            answers.println(json.writeValueAsString(failure(properties)));
        }
    }

    private static String failure(Properties properties) {
        try {
            KafkaConfig config = KafkaConfig.fromProps(properties);
            LogConfig.validateBrokerLogConfigValues(
                config.extractLogConfigMap(), config.remoteLogManagerConfig().isRemoteStorageSystemEnabled());
            return null;
        } catch (RuntimeException exception) {
            return String.valueOf(exception.getMessage());
        }
    }
}
