import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

/** For each line [realm, rules, principals] a line with the short names, null for a principal that is refused; null for
 *  rules that cannot be read. */
public final class ShortNames {
    private ShortNames() { }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = json.readTree(line);
            answers.println(json.writeValueAsString(names(asked.get(0).asText(), texts(asked.get(1)), texts(asked.get(2)))));
        }
    }

    private static List<String> texts(JsonNode array) {
        List<String> texts = new ArrayList<>();
        array.forEach(each -> texts.add(each.asText()));
        return texts;
    }

    private static List<String> names(String realm, List<String> rules, List<String> principals) {
        KerberosShortNamer namer;
        try {
            namer = KerberosShortNamer.fromUnparsedRules(realm, rules);
        } catch (RuntimeException exception) {
            return null;
        }
        List<String> names = new ArrayList<>();
        for (String principal : principals) {
            try {
                names.add(namer.shortName(KerberosName.parse(principal)));
            } catch (IOException | RuntimeException exception) {
                names.add(null);
            }
        }
        return names;
    }
}
