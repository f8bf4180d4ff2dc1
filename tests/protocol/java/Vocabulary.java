import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;

/** Prints Kafka's error codes, and its APIs with the header versions of each of their versions. */
public class Vocabulary {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            boolean retriable = error.exception() instanceof RetriableException;
            System.out.println("error " + error.name() + " " + error.code() + " " + retriable);
        }
        for (ApiKeys api : ApiKeys.values()) {
            StringBuilder headers = new StringBuilder();
            for (short version = api.oldestVersion(); version <= api.latestVersion(); version++) {
                headers.append(" ").append(version).append(":").append(api.requestHeaderVersion(version));
                headers.append(":").append(api.responseHeaderVersion(version));
            }
            System.out.println("api " + api.name() + " " + api.id + headers);
        }
    }
}
