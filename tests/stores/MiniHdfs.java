import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in one process: `java MiniHdfs.java <port> <directory>`, until it is killed. */
public class MiniHdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.set("hdfs.minidfs.basedir", arguments[1]);
    conf.set("dfs.permissions.enabled", "false");
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf).nameNodePort(Integer.parseInt(arguments[0])).numDataNodes(1).build();
    cluster.waitActive();
    System.out.println("ready");
    Thread.currentThread().join();
  }
}
