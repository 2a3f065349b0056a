package streamjoin.spark;

import org.apache.spark.rdd.RDD;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import scala.Option;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** Plans the Python stages of a join so that they have their names in Spark's UI; all else is left to Spark. */
public class NamedStages extends SparkStrategy {
  static final String SETTING = "spark.streamjoin.stage.";

  public Seq apply(LogicalPlan plan) {
    if (plan instanceof MapInArrow) {
      MapInArrow stage = (MapInArrow) plan;
      if (stage.functionExpr() instanceof PythonUDF && ((PythonUDF) stage.functionExpr()).name().startsWith("streamjoin_")) {
        SparkPlan below = (SparkPlan) planLater(stage.child());
        SparkPlan named = new Stage(stage.functionExpr(), stage.output(), below, stage.isBarrier(), stage.profile());
        return Nil$.MODULE$.$colon$colon(named);
      }
    }
    return Nil$.MODULE$;
  }

  /**
   * Spark's own operator, which names what it leads to.
   *
   * Spark calls a stage after the call site that is set when the last of its RDDs is made, or when its job begins. The
   * operators of a plan make their RDDs from the bottom to the top, so the name is set after those of this one.
   */
  public static class Stage extends MapInArrowExec {
    public Stage(Expression func, Seq output, SparkPlan child, boolean isBarrier, Option profile) {
      super(func, output, child, isBarrier, profile);
    }

    public RDD doExecute() {
      RDD rows = super.doExecute();
      String name = sparkContext().getLocalProperty(SETTING + ((PythonUDF) func()).name());
      if (name != null) {
        sparkContext().setCallSite(name);
      }
      return rows;
    }

    public MapInArrowExec withNewChildInternal(SparkPlan newChild) {
      return new Stage(func(), output(), newChild, isBarrier(), profile());
    }

    public String nodeName() {
      return "MapInArrow";
    }
  }
}
